"""The live page of `equipoise watch`: how the runs in some folders stand, renewed as rounds end."""
