"""Images of observations, kept beside the trajectories that name them.

An environment may delete or overwrite a screenshot after its next step, and the engine reads files below the
log path only; so each image is copied to `images/<episode>/step-<k>-<n>.<suffix>` before it is used.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from rl_agent.errors import EnvironmentFailure
from rl_agent.files import file_name
from rl_agent.types import EpisodeKey, Observation, Split


def keep_images(observation: Observation, place: Path, step: int) -> Observation:
    """The observation with its images under `place`. Raises EnvironmentFailure if one cannot be read."""
    kept = []
    for number, image in enumerate(observation.images):
        target = place / f"step-{step:03d}-{number}{Path(image).suffix}"
        try:
            _copy(Path(image), target)
        except OSError as error:
            raise EnvironmentFailure(f"its image {image} cannot be kept: {error.strerror}") from error
        kept.append(str(target))
    return replace(observation, images=tuple(kept))


def image_place(images: Path, split: Split, iteration: int, key: EpisodeKey) -> Path:
    """The folder of an episode's images, and of no other's."""
    return images / f"{split}-iteration{iteration}" / f"{file_name(key.task_id)}-{key.group}-{key.attempt}"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    # A copy, not a link: an environment that writes its next screenshot into the same file would change both.
    shutil.copyfile(source, temporary)
    temporary.replace(target)
