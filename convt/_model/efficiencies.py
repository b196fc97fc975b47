"""Efficiencies: the costs of the counts in units of cost, equal on all machines.

The comment of an entry names what costs so much. costs.NAMES gives the unit of cost of each count: a vector operation, a kernel
call, a byte from a cache, and so on. `python -m bench.calibrate` fits these numbers to measured times.
"""

EFFICIENCIES = {
    "tile": 1.24,  # cycle of ports of a register tile: peak rate over the rate reached
    "rows": 1.76,  # cycle of ports of an output block in planes: peak rate over the rate reached
    "amx_tile": 2.1,  # AMX product: peak rate over the rate reached
    "accumulator": 0.709,  # vector of accumulators: initialised and stored once per call
    "call": 0.455,  # kernel call: addresses, prefetches, start and end of loops
    "weights_l2": 0.189,  # byte of packed weights read from L2, relative to the L2 read rate alone
    "weights_l3": 1.63,  # byte of packed weights outside L2, fetched while tiles multiply
    "stall": 0.256,  # byte outside L2: the waiting time that prefetching leaves
    "memory": 0.627,  # byte of packed weights from memory, in addition to its cost in the last-level cache
    "move": 9.65,  # vector that is loaded, possibly changed, and stored
    "collect": 10,  # vector of one channel's pixels, copied beside the vectors of other channels
    "rest": 11.6,  # remainder of a pixel beside whole vectors, copied
    "start": 3.43,  # run of contiguous elements: found, and its loop started
    "piece": 0.465,  # piece of a row or a vector, stored separately
    "source": 0.17,  # address of a row that a tile reads or writes
    "turn": 3.9,  # vector transposed between NCX and NXC
    "across_turn": 6,  # vector of one channel's pixels, transposed for scatter
    "plane_in": 1.44,  # byte of input outside L2, in cache lines of many planes
    "out_l3": 2,  # byte of output outside L2, ordinary stores
    "out_non_temporal": 0.952,  # byte of output, non-temporal stores
    "out_split": 3,  # byte of output in cache lines that are stored in parts and evicted in between
    "task": 44.1,  # start of a task on a thread
    "setup": 4.5,  # setup of the weight transform of a one-shot call
    "zip": 8.58,  # vector of outputs interleaved by shuffles
    "gather": 29.1,  # vector of outputs interleaved by a gather
    "transform_in": 6.17,  # vector of a transformed Winograd input tile
    "store": 6.4,  # vector stored from AMX accumulators; address and store of a point of a Winograd input tile
    "transform_out": 11.7,  # vector of products in the Winograd output transform
    "wino_output": 0.43,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 3.77,  # term added to outputs that fill less than a vector
    "overlap_vector": 14.2,  # term added to a vector of outputs
    "overlap_out": 24,  # outputs of one j: bias, activation, store
    "dw": 0.795,  # multiply-add of a vector that loads its own input
    "dw_gathered": 1.76,  # input vector that was gathered beforehand and serves all phases
    "dw_store": 1.04,  # vector of outputs stored by depthwise
    "amx_pack": 26,  # step of depth of a row, split into bfloat16 parts
    "amx_panel": 320,  # step of depth of a panel of inputs, split into bfloat16 parts
    "pack_weights": 21.7,  # byte of a filter packed, relative to the bytes that a vector operation moves
    "pack_weights_new": 5.5,  # byte packed into new memory
    "pack_on_the_fly": 8.2,  # byte packed on the fly
}
