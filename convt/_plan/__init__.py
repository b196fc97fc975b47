"""Plans: the choice of backend and algorithm, what is kept, and measured results. `convt.tuning` belongs to this room.

A problem comes in from `_call`; the algorithms' stages are called from here only. A module uses those below it:

    plan, explain      a plan in words, for users
    run                computation of a problem on arrays
    choose             which algorithm computes a problem; "tune" measures
    measure            timing of candidates
    plans              packed weights and plans that are kept
    keep, repeat       bounded caches, and calls that were made before
    known              the same calls on a host's buffers, without Python and the GIL
    strides            layouts of arrays
"""
