"""Plans: the choice of backend and algorithm, what is kept, and measured results. `convt.tuning` belongs to this room.

A problem comes in from `_call`; the algorithms' stages are called from here only.

    plans              the operator in canonical form: choice, packed weights, plans of each shape
    keep, repeat       bounded caches, and calls that were made before
    measure, explain   timing of candidates, and a plan in words
"""
