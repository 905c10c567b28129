"""``TRACE/.pass``, with which a streamed pass goes on after a kill: who is in it, and what it has computed so far."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from eagle3ref.durable import PARTIAL, replace_file
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.access import writing
from eagle3ref.trace.header import TraceHeader
from eagle3ref.trace.passes import Pass, known_answer
from eagle3ref.trace.prompts import Prompt
from eagle3ref.trace.states_on_disk import StatesOnDisk

_FOLDER = ".pass"
_SPLIT = "split.json"
_MEMBERS = "pass.json"
_JOURNAL = "answers.jsonl"
_STATES = re.compile(r"(stream|state)-[\d-]+\.bin")
_VERSION = 1


class WorkFolder:
    """The work folder of one trace, used by the one writer that has the trace's lock.

    Args:
        trace: the trace folder.
        header: of that trace.
        final_hidden_state: whether it is recorded too.
    """

    def __init__(self, trace: Path, header: TraceHeader, final_hidden_state: bool) -> None:
        self.path = trace / _FOLDER
        self._trace, self._header = trace, header
        self._settings = {**json.loads(header.to_json()), "final_hidden_state": final_hidden_state}
        del self._settings["provenance"]

    def settled(self, groups: Sequence[range], asked: dict[str, Any]) -> list[range]:
        """The passes of this capture as its first run has cut them; ``groups`` if this is it.

        How much fits a memory bound depends on what the program takes itself, which differs a little from run to run.

        Args:
            groups: places of the prompts of each pass, as this run would cut them.
            asked: prompts and settings that the cut follows from; when they are other ones, it is made anew.

        Raises:
            Eagle3RefError: the operating system refuses.
        """
        path = self.path / _SPLIT
        record: dict[str, Any] = {"asked": asked, "ends": [places.stop for places in groups]}
        with writing(self._trace):
            found = _parsed(path.read_bytes()) if path.is_file() else {}
            if found.get("asked") == asked and _are_ends(found.get("ends"), groups[-1].stop):
                record = found
            self.path.mkdir(exist_ok=True)
            replace_file(path, json.dumps(record).encode())
        ends = record["ends"]
        return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def journal(self) -> Path:
        """Where answers are written down while they are generated.

        Raises:
            Eagle3RefError: the operating system refuses the folder.
        """
        with writing(self._trace):
            self.path.mkdir(exist_ok=True)
        return self.path / _JOURNAL

    def find(self, prompts: Sequence[Prompt]) -> Pass | None:
        """The pass that an earlier run has begun, answers included; None when there is none.

        Raises:
            Eagle3RefError: a pass of other prompts or settings, or a damaged record of one. Nothing is deleted.
        """
        with writing(self._trace):
            if not (self.path / _MEMBERS).is_file():
                return None
            data = (self.path / _MEMBERS).read_bytes()
        found = _parsed(data)
        if not _is_record(found):
            self._refuse(f"a damaged {_MEMBERS}, or one of another version of eagle3ref,")
        changed = [name for name, value in self._settings.items() if found["settings"].get(name) != value]
        if changed:
            self._refuse(f"a pass with another {', '.join(changed)}")
        asked = {prompt.id: prompt for prompt in prompts}
        return Pass(tuple(self._member(member, asked) for member in found["sequences"]))

    def begin(self, group: Pass) -> None:
        """Write down whose pass it is. From then on its answers are known, and their journal is deleted.

        Raises:
            Eagle3RefError: the operating system refuses.
        """
        members = [
            {"id": prompt.id, "tokens": prompt.tokens.tolist(), "answer": known_answer(prompt).tolist()}
            for prompt in group.prompts
        ]
        record = {"schema_version": _VERSION, "settings": self._settings, "sequences": members}
        with writing(self._trace):
            self.path.mkdir(exist_ok=True)
            self._delete_states()
            replace_file(self.path / _MEMBERS, json.dumps(record).encode())
            (self.path / _JOURNAL).unlink(missing_ok=True)

    def states(self, group: Pass, done: Set[str]) -> StatesOnDisk:
        """Where the states of the pass that was begun or found are kept; ``done`` are the ids in the trace.

        Raises:
            Eagle3RefError: the operating system refuses.
        """
        with writing(self._trace):
            key = hashlib.sha256((self.path / _MEMBERS).read_bytes()).digest()
        recorded = frozenset(i for i, prompt in enumerate(group.prompts) if prompt.id in done)
        return StatesOnDisk(self.path, key, group.lengths, self._header, recorded)

    def end_pass(self) -> None:
        """Delete what the pass has left; the record of its members goes last.

        Raises:
            Eagle3RefError: the operating system refuses.
        """
        with writing(self._trace):
            self._delete_states()
            for name in (_JOURNAL, _MEMBERS):
                (self.path / name).unlink(missing_ok=True)

    def end(self) -> None:
        """The capture is complete: delete the folder, if nobody has put something else into it.

        Raises:
            Eagle3RefError: the operating system refuses.
        """
        self.end_pass()
        with writing(self._trace):
            for name in (_MEMBERS + PARTIAL, _SPLIT + PARTIAL, _SPLIT):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def layers_done(self) -> int:
        """The layer that the pass has reached, by the names of its files."""
        with writing(self._trace):
            return max((int(path.name[7:11]) for path in self.path.glob("stream-*.bin")), default=0)

    def num_bytes(self) -> int:
        """Of all files in it."""
        with writing(self._trace):
            return sum(path.stat().st_size for path in self.path.iterdir()) if self.path.is_dir() else 0

    def _delete_states(self) -> None:
        for path in self.path.iterdir():
            if _STATES.fullmatch(path.name.removesuffix(PARTIAL)):
                path.unlink()

    def _member(self, member: dict[str, Any], asked: dict[str, Prompt]) -> Prompt:
        prompt, tokens, answer = asked.get(member["id"]), member["tokens"], member["answer"]
        if prompt is None:
            self._refuse(f"a pass with sequence {member['id']!r}, which is not asked for now")
        given = answer if prompt.answer is None else prompt.answer.tolist()
        if prompt.tokens.tolist() != tokens or given != answer:
            self._refuse(f"a pass with other tokens of sequence {member['id']!r}")
        return replace(prompt, answer=torch.tensor(answer))

    def _refuse(self, found: str) -> NoReturn:
        raise Eagle3RefError(
            f"going on with the trace {self._trace}",
            found=f"{found} in {self.path}",
            expected="the prompts and settings with which that pass was begun",
            action=f"Give those, and it goes on where it was. To give its layers up, delete {self.path}.",
        )


def _parsed(data: bytes) -> dict[str, Any]:
    """A JSON object; empty when it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_record(found: dict[str, Any]) -> bool:
    """Whether this is what ``WorkFolder.begin`` writes."""
    if found.get("schema_version") != _VERSION:
        return False
    settings, members = found.get("settings"), found.get("sequences")
    return isinstance(settings, dict) and isinstance(members, list) and all(map(_is_member, members))


def _is_member(member: Any) -> bool:
    return (
        isinstance(member, dict)
        and isinstance(member.get("id"), str)
        and all(
            isinstance(ids := member.get(name), list) and ids and all(type(token) is int for token in ids)
            for name in ("tokens", "answer")
        )
    )


def _are_ends(ends: Any, num_prompts: int) -> bool:
    ascending = isinstance(ends, list) and all(type(end) is int for end in ends) and ends == sorted({0, *ends})[1:]
    return ascending and ends[-1:] == [num_prompts]
