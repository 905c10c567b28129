"""SGLang's HTTP server, in SGLang's own environment: its launcher, with the branches that ``gpu_branches`` takes."""

import runpy

import gpu_branches  # of sglang_cpu, which comes first in PYTHONPATH

gpu_branches.take()  # in each of its processes: they import this file again

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
