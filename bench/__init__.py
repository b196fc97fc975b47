"""The micro-benchmark: real layers, convt and its peers side by side. From a checkout: `python -m bench --quick`.

A wheel has this folder as the package convt_bench, beside convt and not inside: importing it must not load convt, which would
then be in the processes of its peers, too. There the command is `convt-bench --quick`, and the modules are
`python -m convt_bench.calibrate` and so on.

__main__    the command line and the order of things
layers      the table of real layers, and the reader of layer files
shared      what the benchmark shares with convt, without importing it
descriptor  a layer in benchdnn's words
batch       benchdnn's batch files; layers.batch is the table as one
problem     a layer with a dtype, a layout, a mode and its numbers
check       is a result right? asked before anything is timed, and again afterwards
peers/      the libraries, one file each
worker      a library in a process of its own
timing      what such a process does in its turn
rounds      whose turn it is, and what came of it
machine     the CPU, its measured peaks and bandwidth
record      all that a run found out, and its JSON file
compare     two such files against each other
live        what is seen while it runs
tables      what is printed at the end
page, plots the HTML report and its pictures
beside      how long brief calls take beside a busy process
cores       how plans share their work among many threads, on paper
errors      how far convt's results lie from the exact sums, at every precision
crosscheck  the same layers by the peers' own tools
"""

COMMAND = "python -m bench" if __name__ == "bench" else "convt-bench"  # what starts it
