"""The table of architectures that a plan reads without an import."""

import subprocess
import sys

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rl_agent.trainer.grpo.model.trainable import known_classes


def test_architectures_are_those_of_the_installed_transformers():
    """Read without an import; the table that transformers uses, imported, says the same."""
    script = (
        "import sys; from rl_agent.trainer.grpo.model.trainable import known_classes;"
        "known_classes();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert known_classes() == dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert len(known_classes()) > 100
