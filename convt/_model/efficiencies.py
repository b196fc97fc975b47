"""Efficiencies: the costs of the counts in units of cost, equal on all machines.

The comment of an entry names what costs so much. costs.NAMES gives the unit of cost of each count: a vector operation, a kernel
call, a byte from a cache, and so on. `python -m bench.recorded` fits these numbers to measured times.
"""

EFFICIENCIES = {
    "tile": 1.13,  # cycle of ports of a register tile: peak rate over the rate reached
    "rows": 1.28,  # cycle of ports of an output block in planes: peak rate over the rate reached
    "amx_tile": 1.78,  # AMX product: peak rate over the rate reached
    "accumulator": 1.08,  # vector of accumulators: initialised and stored once per call
    "call": 0.35,  # kernel call: addresses, prefetches, start and end of loops
    "weights_l2": 1.05,  # byte of packed weights read while nothing else is done, relative to the read rate alone
    "weights_l3": 1.35,  # byte of packed weights outside L2, fetched while tiles multiply
    "stall": 0.027,  # byte outside L2: the waiting time that prefetching leaves
    "memory": 1.56,  # byte of packed weights from memory, relative to the rate of reading alone
    "move": 8.55,  # vector that is loaded, possibly changed, and stored
    "collect": 8.81,  # vector of one channel's pixels, copied beside the vectors of other channels
    "rest": 14.6,  # remainder of a pixel beside whole vectors, copied
    "start": 1.67,  # run of contiguous elements: found, and its loop started
    "piece": 0.369,  # piece of a row or a vector, stored separately
    "source": 0.0975,  # address of a row that a tile reads or writes
    "turn": 3.95,  # vector transposed between NCX and NXC, per 16 bytes
    "across_turn": 5.83,  # vector of one channel's pixels, transposed for scatter
    "plane_in": 1.44,  # byte of input outside L2, in cache lines of many planes
    "out_l3": 1.41,  # byte of output outside L2, ordinary stores
    "out_non_temporal": 0.0301,  # byte of output, non-temporal stores
    "out_split": 7.7,  # byte of output in cache lines that are stored in parts and evicted in between
    "task": 37.2,  # start of a task on a thread
    "setup": 4.5,  # setup of the weight transform of a one-shot call
    "zip": 5.91,  # vector of outputs interleaved by shuffles
    "gather": 23.1,  # vector of outputs interleaved by a gather
    "transform_in": 7.69,  # vector of a transformed Winograd input tile
    "store": 3.34,  # vector stored from AMX accumulators; address and store of a point of a Winograd input tile
    "transform_out": 4.51,  # vector of products in the Winograd output transform
    "wino_output": 0.438,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 6.22,  # term added to outputs that fill less than a vector
    "overlap_vector": 2.73,  # term added to a vector of outputs
    "overlap_out": 21.2,  # outputs of one j: bias, activation, store
    "dw": 0.561,  # multiply-add of a vector that loads its own input
    "dw_gathered": 1.79,  # input vector that was gathered beforehand and serves all phases
    "dw_store": 0.108,  # vector of outputs stored by depthwise
    "amx_pack": 31.6,  # step of depth of a row, split into bfloat16 parts
    "amx_panel": 661,  # step of depth of a panel of inputs, split into bfloat16 parts
    "pack_weights": 21.7,  # byte of a filter packed, relative to the bytes that a vector operation moves
    "pack_weights_new": 5.5,  # byte packed into new memory
    "pack_on_the_fly": 8.2,  # byte packed on the fly
}
