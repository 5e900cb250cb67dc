"""The options of the command `page`."""

import pytest

from rl_agent.cli.page import main
from rl_agent.errors import ConfigError, UsageError


def test_the_command_refuses_what_the_configuration_refuses(tmp_path):
    with pytest.raises(UsageError, match="can be reached by others"):
        main(["--log-path", str(tmp_path), "--host", "0.0.0.0"])
    with pytest.raises(UsageError, match="--log-path, or --plan"):
        main([])


def test_a_folder_that_holds_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no run")
    with pytest.raises(ConfigError, match="holds no run"):
        main(["--log-path", str(tmp_path)])
