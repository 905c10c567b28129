"""The one exception this package raises for bad input."""


class Eagle3RefError(Exception):
    """Bad input, told in one message: what was being done, what was found, what was expected, what to do.

    Args:
        doing: what was being done, e.g. ``"loading draft my-draft"``.
        found: what was found, e.g. ``"fc.weight is 7168 x 7168"``.
        expected: what was expected, e.g. ``"7168 x 21504 (3 capture points x 7168)"``.
        action: what the user can do next, a full sentence.
    """

    def __init__(self, doing: str, *, found: str, expected: str, action: str) -> None:
        self.doing, self.found, self.expected, self.action = doing, found, expected, action
        super().__init__(f"{doing}: found {found}; expected {expected}. {action}")
