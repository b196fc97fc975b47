"""The micro-benchmark: real layers, convt and its peers side by side. From a checkout: `python -m bench --quick`.

__main__    the command line and the order of things
layers      the table of real layers, and the reader of layer files
problem     a layer with a dtype, a layout and its numbers
check       is a result right? asked before anything is timed
peers/      the libraries, one file each
worker      a library in a process of its own
timing      what such a process does in its turn
rounds      whose turn it is, and what came of it
machine     the CPU, its measured peak and bandwidth
report      progress, tables, JSON
"""
