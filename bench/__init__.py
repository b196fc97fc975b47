"""The micro-benchmark of convt and other libraries on layers of public networks. In a checkout: `python -m bench --quick`.

A wheel installs this folder as the package convt_bench next to convt, not inside it. Importing a package imports its parents,
and convt must not be loaded in the processes of the other libraries. In an installed package, the command is
`convt-bench --quick`, and modules are run as `python -m convt_bench.models`.

The benchmark:

__main__    the command line
command     the parsers of all commands, and the options that they share
layers      the table of built-in layers, and the reader of layer files
samples     random neighbours of layers
shared      modules of convt that the benchmark loads without importing convt
descriptor  one layer in benchdnn's notation
batch       benchdnn's batch files
problem     a layer with dtype, layout, mode and input values
check       the comparison of a result with the definition of the operator, before and after timing
peers/      the libraries, one module for each way to run one
worker      the process that runs one library
timing      repeated calls within that process
rounds      the turns of the libraries on one problem, and their results
machine     the CPU, its measured peaks and bandwidth
record      all results of a run, and its JSON file
compare     the comparison of two JSON files
live        progress output during a run
tables      columns and summaries at the end of a run
page, plots the HTML report and its pictures
picture     the picture of the README
palette     the colours of the libraries in all pictures

Other measurements, each with a command line of its own:

beside      time of brief calls next to a busy process
checkouts   another checkout of convt against this one
checksums   cost of the check for changed weights in PyTorch
cores       distribution of work over many threads, computed from plans
jax_door    convt.jax beside jax.lax, both under jax.jit
crosscheck  the same layers measured with tools of the other libraries
errors      rounding errors of each dtype and precision
models      whole PyTorch and ONNX models (with models_onnx, published)
planning    cost of new shapes, kept memory, and the automatic choice on other CPUs (with planning_worker)
recorded    times of the algorithms on several CPUs, and the fit of the cost model's efficiencies to them (with fit)
scaling     dask workers
"""

COMMAND = "python -m bench" if __name__ == "bench" else "convt-bench"  # the command as users type it
