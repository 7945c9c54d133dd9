"""A protocol of a user's own: one file in the folder of --config-dir, with a setting."""

import json

from test_cli import InProcess

PROTOCOL = '''
from dataclasses import dataclass, replace

from posbench.evaluation.protocols.fixed_targets import FixedTargets


class LateTargets(FixedTargets):
    """Scores the targets of fixed_targets without the first `left_out` of each window."""

    floor = None

    @dataclass(frozen=True)
    class Settings:
        left_out: int = 1

    def __init__(self, evaluation):
        super().__init__(evaluation)
        n_targets = self.windows.n_targets - self.settings.left_out
        self.windows = replace(self.windows, n_targets=n_targets)
'''


def test_a_protocol_with_a_setting_is_a_file_in_the_folder_of_config_dir(
    tmp_path, text_folder, capfd
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "late_targets.py").write_text(PROTOCOL)
    cli = InProcess(tmp_path, text_folder, capfd)
    words = [
        f"--config-dir={tmp_path / 'mine'}",
        "evaluate.protocol=late_targets",
        "evaluate.lengths=[32]",
        "evaluate.windows=16",
        "evaluate.targets=4",
    ]
    done = cli(*words)
    assert "late_targets" in done.stdout, done.stderr
    (folder,) = tmp_path.glob("runs/*-16-*/evals/late_targets")
    (usual,) = folder.glob("*.json")
    cli(*words, "evaluate.settings={left_out: 2}")
    (other,) = set(folder.glob("*.json")) - {usual}
    contents = [json.loads(path.read_text()) for path in (usual, other)]
    assert [content["config"]["evaluate"]["settings"] for content in contents] == [
        {"left_out": 1},
        {"left_out": 2},
    ]
    n_windows = contents[0]["rows"][0]["n_targets"] // 3
    assert contents[1]["rows"][0]["n_targets"] == 2 * n_windows
    for word, part in (
        ("evaluate.settings={left: 2}", "evaluate.settings.left is no setting of"),
        ("evaluate.settings={left_out: many}", "evaluate.settings.left_out=many must be"),
        ("evaluate.protocol=later", "evaluate.protocol=later is unknown"),
    ):
        assert part in cli(*words, word, code=2).stderr
