"""Why a server's acceptance differs: known mis-wirings replayed, scored against the evidence, ranked."""

from eagle3ref.diagnose.diagnose import DEFAULT_BUDGET, diagnose, diagnose_files, diagnose_with
from eagle3ref.diagnose.diagnosis import VERDICT_MEANING, Cost, Diagnosis, Verdict
from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis, LeftOut
from eagle3ref.diagnose.laboratory import Laboratory, Prediction
from eagle3ref.diagnose.ranking import Candidate
from eagle3ref.diagnose.runtime import RUNTIME_CAUSES, SYMPTOMS, RuntimeCause
from eagle3ref.diagnose.separation import NextObservation
from eagle3ref.diagnose.symptoms import Sign
from eagle3ref.diagnose.wiring import Wiring

__all__ = [
    "DEFAULT_BUDGET",
    "RIGHT",
    "RUNTIME_CAUSES",
    "SYMPTOMS",
    "VERDICT_MEANING",
    "Candidate",
    "Cost",
    "Diagnosis",
    "Hypothesis",
    "Laboratory",
    "LeftOut",
    "NextObservation",
    "Prediction",
    "RuntimeCause",
    "Sign",
    "Verdict",
    "Wiring",
    "diagnose",
    "diagnose_files",
    "diagnose_with",
]
