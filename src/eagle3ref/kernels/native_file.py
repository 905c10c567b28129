"""A compiled library as a file: is it whole, and is it of the sources that lie beside it?

To load a library that was cut off ends the process, and a stale one gives yesterday's answers. ``setup.py`` runs this
file by itself, so it needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

_CHECKOUT = Path(__file__).parents[3]
_ELF64 = b"\x7fELF\x02"


def digest(csrc: Path) -> str:
    """Of the names and the contents of the sources, as ``csrc/sources.h`` keeps it in a library."""
    found = hashlib.sha256()
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cpp", ".cu")):
        found.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def fault(library: Path, csrc: Path = _CHECKOUT / "csrc") -> str | None:
    """Why a library must not be loaded, in a few words; None if nothing is wrong. Without sources none is stale."""
    content = library.read_bytes()
    if _is_cut_off(content):
        return "a file that was cut off"
    if (csrc / "library.cpp").exists() and digest(csrc).encode() not in content:
        return "built from other sources than csrc/ holds now"
    return None


def _is_cut_off(content: bytes) -> bool:
    """Whether an ELF file ends before its last part, the section headers, does."""
    if not content.startswith(_ELF64):
        return not content
    if len(content) < 64:
        return True
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    return bool(start + size * count > len(content))
