"""The doctor finds what is wrong, and says what to do."""

import datetime
import socket

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.examine import (
    OPTIONAL,
    certificate,
    data_folder,
    examine,
    folder_for_runs,
    installation,
    machine,
    package,
    port,
    served,
)

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
    monkeypatch.setattr("equipoise.cli.examine.requires", lambda _: ["nonesuch>=2.0", "extra-thing; extra == 'dev'"])
    found = [one for one in installation() if one.state == "bad"]
    assert [(one.what, one.advice) for one in found] == [("nonesuch", "pip install 'nonesuch>=2.0'.")]


@pytest.mark.parametrize(("bounds", "state"), [(">=2.6,<2.14", "ok"), (">=99", "bad"), ("<2.0", "bad")])
def test_versions_are_compared_with_what_is_asked_for(bounds, state):
    found = package(Requirement(f"torch{bounds}"))
    assert found.state == state
    if state == "bad":
        assert found.found.endswith(f", not {Requirement(f'torch{bounds}').specifier}")
        assert found.advice.startswith("pip install 'torch")


def test_an_optional_package_in_a_wrong_version_is_bad_and_a_missing_one_is_not(monkeypatch):
    assert package(Requirement("nonesuch>=1"), OPTIONAL["flwr"]).state == "note"
    monkeypatch.setattr(
        "equipoise.cli.examine.requires", lambda _: ["flwr<0.1; extra == 'flower'", "ruff<0; extra == 'dev'"]
    )
    wrong = [one for one in installation() if one.state == "bad"]
    assert [one.what for one in wrong] == ["flwr"]


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
    monkeypatch.setattr("equipoise.cli.examine.NEEDED", 1 << 80)
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


# --------------------------------------------------------------------------- a certificate, its key, and its authority
def made(folder, name, begin, end, signer=None, names=("localhost",)):
    """A key and a certificate that is good from day `begin` to day `end`, signed by itself or by `signer`."""
    x509 = pytest.importorskip(
        "cryptography.x509", reason="certificates are made with cryptography, which Flower brings"
    )
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signing = (subject, key) if signer is None else signer
    today = datetime.datetime.now(datetime.UTC)
    first, last = (today + datetime.timedelta(days=days) for days in (begin, end))
    built = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )  # fmt: skip
    (folder / f"{name}.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(*form))
    return subject, key


def test_a_certificate_is_tried_with_its_key_and_its_authority(tmp_path):
    authority = made(tmp_path, "ca", -9, 400)
    made(tmp_path, "other", -9, 400)
    for name, begin, end in (("server", -9, 300), ("short", -9, 5), ("ended", -9, -1), ("later", 5, 300)):
        made(tmp_path, name, begin, end, authority)

    def tried(name, key=None, ca="ca", host=None):
        return served(tmp_path / f"{name}.pem", tmp_path / f"{key or name}.key", tmp_path / f"{ca}.pem", host)

    good = tried("server")
    assert (good.state, good.advice) == ("ok", "")
    assert good.found.endswith("days at localhost")
    assert tried("server", host="localhost").state == "ok"
    assert (tried("short").state, tried("short").advice) == ("note", "Renew it.")
    for found, words, advice in (
        (tried("ended"), "has expired", "Make a new one"),
        (tried("later"), "not yet valid", "clock"),
        (tried("server", key="short"), "is not its key", "make both anew"),
        (tried("server", ca="other"), "other.pem did not sign it", "sign it with that authority"),
        (tried("server", host="fed.example.org"), "mismatch", "subjectAltName has fed.example.org"),
        (tried("server", key="none"), "none.key is not there", "Check the path"),
    ):
        assert found.state == "bad", found
        assert words in found.found
        assert advice in found.advice
    (tmp_path / "text.pem").write_text("no certificate")
    assert "cannot be read" in tried("text", key="server").found
    assert "text.pem is no certificate" in tried("server", ca="text").found
    assert certificate(tmp_path / "server.pem").advice.startswith("With --key and --ca")
    words = ["doctor", "--out", str(tmp_path), "--certificate", str(tmp_path / "ended.pem"), "--key",
             str(tmp_path / "ended.key"), "--ca", str(tmp_path / "ca.pem")]  # fmt: skip
    done = CliRunner(env={"COLUMNS": "160", "EQUIPOISE_DATA": ""}).invoke(app, words)
    assert done.exit_code == 1
    assert "certificate ca.pem" in done.output


def test_a_certificate_that_ends_soon(tmp_path, monkeypatch):
    (tmp_path / "site.pem").write_text(GOOD)
    monkeypatch.setattr("equipoise.cli.examine.SOON", 10**12)
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
