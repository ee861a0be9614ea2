from pathlib import Path

import pytest

from shardwright.tools.main import main
from tests.shardwright.server.runs import needs_grpc

pytestmark = needs_grpc


@pytest.mark.parametrize("where", ["env:KEY_PASSWORD", "file:FILE", "prompt"])
def test_passwords_are_read_from_where_the_user_says(where, tmp_path, monkeypatch, capsys):
    pkcs12 = pytest.importorskip("cryptography.hazmat.primitives.serialization.pkcs12")
    monkeypatch.setenv("KEY_PASSWORD", "hidden")
    (tmp_path / "secret").write_text("hidden\nrest")
    monkeypatch.setattr("shardwright.tools.certificates.getpass", lambda text: "hidden")
    where = where.replace("FILE", str(tmp_path / "secret"))
    assert main(["certificates", str(tmp_path / "made"), "--server_password", where]) == 0
    files = map(Path, capsys.readouterr().out.split())
    (key,) = [path.read_bytes() for path in files if path.name == "server.p12"]
    assert pkcs12.load_pkcs12(key, b"hidden").key
    with pytest.raises(ValueError, match="password"):
        pkcs12.load_pkcs12(key, b"another")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("hidden", "`--server_password` is no place of a password; write `prompt`, `env:VARIABLE`"),
        ("env:NO_SUCH", "`--server_password env:NO_SUCH`: there is no password"),
        ("file:no/such", "`--server_password` cannot be read from `no/such`"),
        ("env:", "`--server_password` is no place of a password"),
    ],
)
def test_a_password_that_is_not_there(where, what, tmp_path, capsys):
    assert main(["certificates", str(tmp_path / "made"), "--server_password", where]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "hidden" not in said
    assert not (tmp_path / "made").exists()
