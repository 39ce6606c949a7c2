"""The moment that chat templates write as the current time: one for all documents, processes and runs of a command."""

from __future__ import annotations

from datetime import datetime

from packer.engine import Engine
from packer.facts import TextIdentity
from packer.notes import Note, Notes, make_note
from packer.output.unfinished_output import MOMENT
from packer.sources.source import Source


def set_moment(opened: Source, notes: Notes, engine: Engine) -> None:
    """Set the moment at which an output is begun, in all processes and when it is resumed."""
    encoder = opened.encoder
    if encoder is not None and encoder.writes_date:
        encoder.set_moment(make_note(notes, MOMENT, _now, engine, lasting=True).facts["now"])


def repeat_moment(opened: Source, text: TextIdentity | None) -> None:
    """Set the moment that a manifest has for its text."""
    moment, encoder = None if text is None else text.moment, opened.encoder
    if encoder is not None and encoder.writes_date and moment is not None:
        encoder.set_moment(moment)


def _now() -> Note:
    return Note(facts={"now": datetime.now().isoformat(timespec="seconds")})
