"""The model of the machine: what a CPU and its units can do, in cycles. Algorithms read it to choose.

    machine, unit             the machine of a plan, and what multiplies
    constants, machines/      constants of a CPU, a file for each CPU family
    costs, efficiencies       the prices of counts, and what kernels reach of the constants
    calibrate, rates, limits  measurement of the constants, and the hardware limit of a problem
"""
