"""What ``mtp-mlx doctor`` finds well, and what it does not."""

import sys

from mtp_mlx import blas
from mtp_mlx.cli import main


def test_doctor_is_well_on_the_shipped_weights(capfd):
    code = main(["doctor"])
    out = capfd.readouterr().out
    assert "BAD" not in out
    assert code == 0
    assert "every bit equal" in out
    assert blas.load().name in out
    assert sys.platform != "linux" or f"threads: {blas.load().threads} ({blas.load().why})" in out


def test_doctor_looks_at_head_and_standalone_drafter_whatever_is_wrong_with_the_other(run, tiny_drafters, tmp_path):
    head, standalone = map(str, tiny_drafters)
    code, out, _ = run("doctor", "--head", head, "--standalone", standalone)
    assert (code, out.count("BAD")) == (0, 0)
    for folders, bad in (
        ((str(tmp_path / "none"), standalone), ["head"]),
        ((head, str(tmp_path / "none")), ["standalone"]),
        ((standalone, head), ["head", "standalone"]),
    ):
        code, out, _ = run("doctor", "--head", folders[0], "--standalone", folders[1])
        assert code == 1
        assert [line.split()[1] for line in out.splitlines() if line.startswith("BAD")] == bad
