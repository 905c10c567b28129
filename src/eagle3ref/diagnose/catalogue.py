"""All mis-wirings that are known, as far as they mean something for a draft and its trace."""

from __future__ import annotations

from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.catalogue_network import network_faults
from eagle3ref.diagnose.catalogue_round import round_faults
from eagle3ref.diagnose.catalogue_rows import row_faults
from eagle3ref.diagnose.catalogue_states import state_faults
from eagle3ref.diagnose.catalogue_weights import weight_faults
from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis, LeftOut

_SECTIONS = (state_faults, row_faults, network_faults, weight_faults, round_faults)


def list_hypotheses(bench: Bench) -> tuple[tuple[Hypothesis, ...], tuple[LeftOut, ...]]:
    """The hypotheses that can be replayed, the right wiring first, and those that cannot or need not be.

    Two names of one wiring, such as "first id - 1" and "embedding output first" of a draft that captures point 1, are
    one hypothesis, under the first name; the second is left out and says so.
    """
    tested: list[Hypothesis] = [RIGHT]
    left_out: list[LeftOut] = []
    for entry in (entry for section in _SECTIONS for entry in section(bench)):
        if isinstance(entry, LeftOut):
            left_out.append(entry)
            continue
        twin = next((other for other in tested if other.wiring == entry.wiring), None)
        if twin is None:
            tested.append(entry)
        else:
            left_out.append(LeftOut(entry.name, entry.cause, f"Here it is the same wiring as {twin.name}."))
    return tuple(tested), tuple(left_out)
