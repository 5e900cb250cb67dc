"""Writes a small but real state of AdamW and a warm-up schedule, for tests of continuing it."""

import json
from pathlib import Path

STEPS = 8


def write_optimizer_state(folder: Path) -> Path:
    """The state after 8 steps at a learning rate of 0.001."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.001}], lr=0.001)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    for _ in range(STEPS):
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(schedule.state_dict(), folder / "scheduler.pt")
    saved = {
        "global_step": STEPS,
        "save_steps": 500,
        "logging_steps": 10,
        "epoch": 2.0,
        "log_history": [{"a": 1}],
    }
    (folder / "trainer_state.json").write_text(json.dumps(saved))
    return folder
