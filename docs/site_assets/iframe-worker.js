// A site that is opened from disk may not start a worker, which is where the search lives. An invisible frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const script = new URL(url, location.href).href
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html><body></body>"
      this.inside = new Promise((ready, fail) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const code = inside.document.createElement("script")
          code.src = script
          code.onload = () => ready(inside)
          code.onerror = fail
          inside.document.body.append(code)
        })
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.inside.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
