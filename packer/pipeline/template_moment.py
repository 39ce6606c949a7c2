"""The moment that chat templates write as the current time: one for all documents, processes and runs of a command."""

from __future__ import annotations

from datetime import datetime

from packer.checkpoints import Checkpoint, Checkpoints, make_checkpoint
from packer.engine import Engine
from packer.manifest_fields import TextIdentity
from packer.output.unfinished_output import MOMENT
from packer.sources.source import Source


def set_moment(opened: Source, checkpoints: Checkpoints, engine: Engine) -> None:
    """Set the moment at which an output is begun, in all processes and when it is resumed."""
    encoder = opened.encoder
    if encoder is not None and encoder.writes_date:
        encoder.set_moment(make_checkpoint(checkpoints, MOMENT, _now, engine, lasting=True).facts["now"])


def repeat_moment(opened: Source, text: TextIdentity | None) -> None:
    """Set the moment that a manifest has for its text."""
    moment, encoder = None if text is None else text.moment, opened.encoder
    if encoder is not None and encoder.writes_date and moment is not None:
        encoder.set_moment(moment)


def _now() -> Checkpoint:
    return Checkpoint(facts={"now": datetime.now().isoformat(timespec="seconds")})
