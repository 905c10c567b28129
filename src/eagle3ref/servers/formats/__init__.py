"""One module for each way of printing figures; ``stream`` decides which of them reads a line, a block or an object."""
