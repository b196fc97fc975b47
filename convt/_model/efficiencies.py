"""Efficiencies: the costs of the counts in units of cost, equal on all machines.

The comment of an entry names what costs so much. costs.NAMES gives the unit of cost of each count: a vector operation, a kernel
call, a byte from a cache, and so on. `python -m bench.recorded` fits these numbers to measured times.
"""

EFFICIENCIES = {
    "tile": 1.12,  # cycle of ports of a register tile: peak rate over the rate reached
    "rows": 1.2,  # cycle of ports of an output block in planes: peak rate over the rate reached
    "amx_tile": 1.6,  # AMX product: peak rate over the rate reached
    "accumulator": 1.06,  # vector of accumulators: initialised and stored once per call
    "call": 0.43,  # kernel call: addresses, prefetches, start and end of loops
    "weights_l2": 0.771,  # byte of packed weights read while nothing else is done, relative to the read rate alone
    "weights_l3": 1.48,  # byte of packed weights outside L2, fetched while tiles multiply
    "stall": 0.0327,  # byte outside L2: the waiting time that prefetching leaves
    "memory": 1.2,  # byte of packed weights from memory, relative to the rate of reading alone
    "move": 10,  # vector that is loaded, possibly changed, and stored
    "collect": 8.16,  # vector of one channel's pixels, copied beside the vectors of other channels
    "rest": 16.2,  # remainder of a pixel beside whole vectors, copied
    "start": 1.32,  # run of contiguous elements: found, and its loop started
    "piece": 0.42,  # piece of a row or a vector, stored separately
    "source": 0.11,  # address of a row that a tile reads or writes
    "turn": 2.84,  # vector transposed between NCX and NXC, per 16 bytes
    "across_turn": 5.52,  # vector of one channel's pixels, transposed for scatter
    "plane_in": 0.664,  # byte of input outside L2, in cache lines of many planes
    "out_l3": 1.26,  # byte of output outside L2, ordinary stores
    "out_non_temporal": 0.0398,  # byte of output, non-temporal stores
    "out_split": 5.93,  # byte of output in cache lines that are stored in parts and evicted in between
    "task": 52.9,  # start of a task on a thread
    "setup": 4.5,  # setup of the weight transform of a one-shot call
    "zip": 6.07,  # vector of outputs interleaved by shuffles
    "gather": 30.5,  # vector of outputs interleaved by a gather
    "transform_in": 6.49,  # vector of a transformed Winograd input tile
    "store": 2.94,  # vector stored from AMX accumulators; address and store of a point of a Winograd input tile
    "transform_out": 4.18,  # vector of products in the Winograd output transform
    "wino_output": 0.45,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 6.3,  # term added to outputs that fill less than a vector
    "overlap_vector": 3.28,  # term added to a vector of outputs
    "overlap_out": 22.1,  # outputs of one j: bias, activation, store
    "dw": 0.588,  # multiply-add of a vector that loads its own input
    "dw_gathered": 1.4,  # input vector that was gathered beforehand and serves all phases
    "dw_store": 0.157,  # vector of outputs stored by depthwise
    "amx_pack": 29.9,  # step of depth of a row, split into bfloat16 parts
    "amx_panel": 485,  # step of depth of a panel of inputs, split into bfloat16 parts
    "pack_weights": 21.7,  # byte of a filter packed, relative to the bytes that a vector operation moves
    "pack_weights_new": 5.5,  # byte packed into new memory
    "pack_on_the_fly": 8.2,  # byte packed on the fly
}
