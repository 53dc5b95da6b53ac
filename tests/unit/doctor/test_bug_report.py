"""The archive for a bug report: what is in it, and what is not."""

import errno
import os
import pwd
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tfdist import doctor
from tfdist.cli import doctor_command
from tfdist.cli.main import main
from tfdist.doctor import Check, bug_report
from tfdist.doctor.finding import ok
from tfdist.errors import ConfigError, StorageError

HOME, USER, HOST = "/home/ada", "ada", "analytical"


def archive(path: Path, text: str, environ: dict[str, str]) -> dict[str, str]:
    log = path / "ada.log"
    log.write_text(text)
    bug_report.write(
        path / "report.zip",
        [ok("hostname", f"{HOST} resolves")],
        packages={"asttokens": "3.0.1", "keras": "3.15.1"},
        environ=environ,
        logs=[log],
        redacted=bug_report.redactor(HOME, USER, HOST),
    )
    with zipfile.ZipFile(path / "report.zip") as found:
        return {name: found.read(name).decode() for name in found.namelist()}


def test_nothing_secret_is_packed(tmp_path: Path) -> None:
    secret = "hunter2"
    text = "\n".join(
        [
            f"s3://me:{secret}@store/data from /home/ada/data on {HOST}",
            f'AWS_SECRET_ACCESS_KEY="{secret}" token: {secret} "api_key": "{secret}", Authorization: Bearer {secret}',
            f"TFDIST_JOB_KEY={secret} tfdist agent --api-key {secret} --password '{secret}'",
            f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY----- " + "hf_" + 4 * secret,
            "step 7 of /home/adam/keys, user ada",
        ]
    )
    environ = {
        "TFDIST_AGENT_KEY": secret,
        "KERAS_HOME": f"{HOME}/.keras",
        "TF_URL": f"http://x:{secret}@y",
        "MAIL": "m",
    }
    found = archive(tmp_path, text, environ)
    assert list(found) == ["doctor.json", "packages.txt", "variables.txt", "logs/0-USER.log"]
    for content in found.values():
        assert secret not in content
        assert HOST not in content
        assert "/home/ada/" not in content
    assert found["packages.txt"] == "asttokens==3.0.1\nkeras==3.15.1\n"
    assert found["variables.txt"].splitlines() == [
        "KERAS_HOME=~/.keras",
        "TFDIST_AGENT_KEY=(not shown)",
        "TF_URL=http://(not shown)@y",
    ]
    assert found["logs/0-USER.log"].splitlines()[-1] == "step 7 of /home/adam/keys, user USER"


@pytest.mark.parametrize("text", ["-" * 10**6, "a-" * 10**5, "--token" * 10**5], ids=["hyphens", "words", "options"])
def test_a_long_line_is_read_in_linear_time(text: str) -> None:
    """Each took hours, for every hyphen was looked at as the beginning of a name."""
    redacted = bug_report.redactor(HOME, USER, HOST)
    assert redacted(f"{text} x") == (f"{text} (not shown)" if "token" in text else f"{text} x")
    assert redacted("run --api-token = hunter2") == "run --api-token = (not shown)"


def test_an_archive_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(StorageError):
        archive(tmp_path, "", {})
    assert [one.name for one in tmp_path.iterdir()] == ["ada.log"]


def test_the_end_of_a_long_log_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bug_report, "KEPT_BYTES", 4)
    assert archive(tmp_path, "beginning, end!", {})["logs/0-USER.log"].endswith("\nend!")


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, path=tmp_path / "ada.log"):
        archive(tmp_path, "\0", {})
    assert not (tmp_path / "report.zip").exists()
    archive(tmp_path, "", {})
    with refused(ConfigError, path=tmp_path / "report.zip"):
        archive(tmp_path, "", {})


def test_the_command_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "standard_checks", lambda *, timeout_seconds: [Check("all", lambda: [ok("a", "b")])])
    log, path = tmp_path / "job.log", tmp_path / "report.zip"
    log.write_text("step 1\n")
    assert CliRunner().invoke(main, ["doctor", "--log", str(log)]).exit_code != 0
    result = CliRunner().invoke(main, ["doctor", "--bug-report", str(path), "--log", str(log)])
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(path) as found:
        assert found.read("logs/0-job.log") == b"step 1\n"
        assert b"keras==" in found.read("packages.txt")


def test_it_is_written_by_a_number_without_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    doctor_command._pack(tmp_path / "report.zip", [], ())
    assert zipfile.is_zipfile(tmp_path / "report.zip")
