"""Shared by all tests: Triton's interpreter where there is no GPU, skips that say what is missing, a fixed seed."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

# One thread, in the tests and in the processes they start: the models are tiny, and threads that wait for each other
# crawl on a machine that others use too.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts what runs in its background deaf to Ctrl-C, and so would be the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads this when a kernel is decorated, so it is set before any test module imports one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# marker -> (is it available, why the test is skipped when it is not)
REQUIREMENTS: dict[str, tuple[Callable[[], bool], str]] = {
    "gpu": (torch.cuda.is_available, "needs a CUDA device"),
    "network": (lambda: bool(os.environ.get("EAGLE3REF_TEST_NETWORK")), "set EAGLE3REF_TEST_NETWORK=1 to run it"),
    "engine": (
        lambda: bool(os.environ.get("EAGLE3REF_TEST_ENGINES")),
        "run make test-engines, or name its environments in EAGLE3REF_TEST_ENGINES",
    ),
    "peers": (lambda: bool(os.environ.get("EAGLE3REF_TEST_PEERS")), "run make test-peers"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {marker: reason for marker, (available, reason) in REQUIREMENTS.items() if not available()}
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Weights that a test lets PyTorch initialise are the same in every order of the tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=["plain", "avx2"])
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiled twins twice: in plain instructions, and in AVX2 where the processor has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE3REF_SIMD", request.param)
        yield


@pytest.fixture
def impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of servers that waits hundredths of a second, and knows no key of this machine's user."""
    monkeypatch.setattr("eagle3ref.servers.client.pages._SETTLING", 0.01)
    monkeypatch.setattr("eagle3ref.servers.client.sending.FIRST_PAUSE", 0.01)
    monkeypatch.delenv("EAGLE3REF_API_KEY", raising=False)
