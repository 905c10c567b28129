"""SGLang's HTTP server, in SGLang's own environment: its launcher, with ``gpu_branches`` and ``dump_hook`` taken."""

import runpy

import dump_hook  # of sglang_cpu, which comes first in PYTHONPATH
import gpu_branches

gpu_branches.take()  # in each of its processes: they import this file again
dump_hook.take()

if __name__ == "__main__":
    # Not put into sys.modules as __main__: workers import the file of that one, and would miss the two lines above.
    runpy.run_module("sglang.launch_server", run_name="__main__")
