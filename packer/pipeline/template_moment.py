"""The moment that chat templates write as the current time: one for all documents, processes and runs of a command."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from packer.engine import Engine
from packer.facts import TextIdentity
from packer.notes import Note, Notes, make_note
from packer.output.unfinished_output import MOMENT
from packer.sources.corpus import Corpus


def set_moment(opened: Corpus, notes: Notes, engine: Engine) -> None:
    """Set the moment at which an output is begun, in all processes and when it is resumed."""
    encoders = [source.encoder for source in opened.parts if source.encoder is not None and source.encoder.writes_date]
    if encoders:
        now = make_note(notes, MOMENT, _now, engine, lasting=True).facts["now"]
        for encoder in encoders:
            encoder.set_moment(now)


def repeat_moment(opened: Corpus, texts: Mapping[str, TextIdentity]) -> None:
    """Set the moment that a manifest has for the texts of each source."""
    for name, source in opened.sources.items():
        moment = texts[name].moment if name in texts else None
        if source.encoder is not None and source.encoder.writes_date and moment is not None:
            source.encoder.set_moment(moment)


def _now() -> Note:
    return Note(facts={"now": datetime.now().isoformat(timespec="seconds")})
