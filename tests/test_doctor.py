"""The doctor finds what is wrong, and says what to do."""

import socket

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.doctor import certificate, data_folder, examine, folder_for_runs, installation, machine, port

GOOD = """-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUZskCDNqXZXs08ETv1LCt9eOD7pEwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEZ29vZDAgFw0yNjExMTYwMTQ3NDRaGA8yMTI2MTAyMzAxNDc0
NFowDzENMAsGA1UEAwwEZ29vZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKIA
aK7bS5/2yI7uY+4GWqgYfT6eIqXE+tVQ8wbNX644dRELT/DqihMi4SelgX34nMTI
Mz6urvSrH9F0ZpFVRQqjUzBRMB0GA1UdDgQWBBTnTaqsEQyzVSTvPepyZLHUY/F6
HTAfBgNVHSMEGDAWgBTnTaqsEQyzVSTvPepyZLHUY/F6HTAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQDljmsNm8narSL/yGSP4twdbTJCiNY91Swl
yMCif8Jv0AIhAI9DaKZ3+SgKjJF15N5yw4Q/dLj790ClmPslQqc4NCNS
-----END CERTIFICATE-----"""  # until 2126
PAST = """-----BEGIN CERTIFICATE-----
MIIBOzCB4qADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHBhc3QwHhcN
MjAwMTAxMDAwMDAwWhcNMjAwMjAxMDAwMDAwWjAPMQ0wCwYDVQQDDARwYXN0MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAErydaTG8mwlAx2cW03xfLEb/Moq/z4zPL
cKnLFEveTK5rF2Hhh0QBkLGESfkFOGM1ufGhJN4MaUW17Ne1MSpkPKMvMC0wDAYD
VR0TBAUwAwEB/zAdBgNVHQ4EFgQU5OegmDP3rx3Mm9C+4dNaQ0T0zPMwCgYIKoZI
zj0EAwIDSAAwRQIhAOtYL9q+JXydCYutH3Z6F9FjoHQm6gMRFrfyeBc3FYPqAiAT
eDqGNvvRdwC4IRGTXx0Ql5FmGrp+53DJvQt++2BBjg==
-----END CERTIFICATE-----"""  # until February 2020


def test_an_installation_that_works():
    found = {one.what: one for one in installation()}
    assert {"Python", "equipoise", "torch", "numpy", "safetensors", "flwr"} <= set(found)
    assert all(found[name].state == "ok" for name in ("Python", "torch", "safetensors"))


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr("equipoise.doctor.requires", lambda _: ["nonesuch>=2.0", "extra-thing; extra == 'dev'"])
    found = [one for one in installation() if one.state == "bad"]
    assert [(one.what, one.advice) for one in found] == [("nonesuch", "pip install 'nonesuch>=2.0'")]


def test_threads(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1000)
    assert "OMP_NUM_THREADS" in machine().advice
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert machine().state == "ok"


def test_the_run_folder(tmp_path, monkeypatch):
    assert folder_for_runs(tmp_path / "new" / "deeper").state == "ok"
    (tmp_path / "file").write_text("")
    assert folder_for_runs(tmp_path / "file").state == "bad"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "Choose another --out" in folder_for_runs(tmp_path).advice
    monkeypatch.undo()
    monkeypatch.setattr("equipoise.doctor.NEEDED", 1 << 80)
    assert folder_for_runs(tmp_path).state == "note"


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    assert data_folder().state == "note"
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "none"))
    assert data_folder().state == "bad"
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    found = data_folder()
    assert found.state == "note"
    assert "digits" in found.advice


def test_ports():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert "choose another port" in port(number).advice
    assert port(number).state == "ok"
    assert port(70000).state == "bad"


@pytest.mark.parametrize(
    ("text", "state", "word"),
    [
        (GOOD, "ok", "good for"),
        (PAST, "bad", "ended Feb"),
        ("no certificate", "bad", "no certificate"),
        (None, "bad", "not there"),
    ],
)
def test_certificates(tmp_path, text, state, word):
    path = tmp_path / "site.pem"
    if text is not None:
        path.write_text(text)
    found = certificate(path)
    assert found.state == state
    assert word in found.found
    assert bool(found.advice) == (state != "ok")


def test_a_certificate_that_ends_soon(tmp_path, monkeypatch):
    (tmp_path / "site.pem").write_text(GOOD)
    monkeypatch.setattr("equipoise.doctor.SOON", 10**12)
    assert certificate(tmp_path / "site.pem").advice == "Renew it."


def test_the_command(tmp_path):
    (tmp_path / "past.pem").write_text(PAST)
    words = ["doctor", "--out", str(tmp_path), "--certificate", str(tmp_path / "past.pem")]
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 1
    assert "1 to mend." in done.output
    healthy = CliRunner(env={"COLUMNS": "160", "EQUIPOISE_DATA": ""}).invoke(app, ["doctor", "--out", str(tmp_path)])
    assert healthy.exit_code == 0
    assert "in place" in healthy.output
    assert len(examine(tmp_path, [1], [tmp_path])) > 10
