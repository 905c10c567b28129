"""What the exit status of a command says."""

DOES_NOT_AGREE = 1
BAD_INPUT = 2
CANNOT_TELL = 3
INTERRUPTED = 130
READER_GONE = 141
