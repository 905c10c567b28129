"""``manifest.jsonl``: one line for each sequence that is complete on disk."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.strict import check_types, from_dict, parse_json

# The only names a trace ever reads, writes or removes for a sequence; no id can smuggle a folder into one.
SEQUENCE_FILE = re.compile(r"([0-9]{6,12})-[A-Za-z0-9-]{1,40}\.safetensors")


@dataclass(frozen=True)
class ManifestEntry:
    """What the manifest says of one sequence.

    Args:
        id: of the sequence.
        file: its name in the trace folder.
        bytes: size of that file.
        sha256: of that file, 64 hexadecimal digits.
        prompt_length: number of prompt tokens.
        num_tokens: prompt and output.

    Raises:
        Eagle3RefError: a value of the wrong type, or a file name that this package would not give.
    """

    id: str
    file: str
    bytes: int
    sha256: str
    prompt_length: int
    num_tokens: int

    def __post_init__(self) -> None:
        doing = "reading a manifest line"
        check_types(self, doing)
        if not SEQUENCE_FILE.fullmatch(self.file):
            raise Eagle3RefError(
                doing,
                found=f"file {self.file!r}",
                expected="a name like 000000-my-id.safetensors",
                action="Do not edit the manifest by hand; restore it from a copy.",
            )

    @property
    def index(self) -> int:
        """The number that the file name starts with."""
        return int(self.file.partition("-")[0])


def file_name(index: int, sequence_id: str) -> str:
    """The name of a sequence file: unique by ``index``, readable by what letters and digits the id has."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", sequence_id)[:40].strip("-")
    return f"{index:06d}-{words or 'sequence'}.safetensors"


def manifest_line(entry: ManifestEntry) -> bytes:
    """The line of an entry, its newline included."""
    return json.dumps(asdict(entry)).encode() + b"\n"


def parse_manifest(data: bytes, name: str) -> tuple[ManifestEntry, ...]:
    """The entries, in the order they were recorded.

    What follows the last newline is a line whose writing was cut short, and is left out.

    Raises:
        Eagle3RefError: a line that is not a manifest entry (its number is told), or an id that comes twice.
    """
    entries: dict[str, ManifestEntry] = {}
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        doing = f"reading line {number} of {name}"
        entry = from_dict(ManifestEntry, parse_json(line, doing), doing)
        if entry.id in entries:
            raise Eagle3RefError(
                doing,
                found=f"sequence {entry.id!r} for the second time",
                expected="every id once",
                action="Restore the manifest from a copy, or record the trace again in a new folder.",
            )
        entries[entry.id] = entry
    return tuple(entries.values())
