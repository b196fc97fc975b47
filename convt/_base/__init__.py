"""What every room may use: problems and padding rules, activations, checks, errors, words, files.

Nothing here computes, chooses, or knows a CPU. Modules import only numpy, ml_dtypes and one another.

    problem, padding, activation, norm    the canonical form of a call, and the rules that lead to it
    dtypes                                the table of dtypes
    check, views, dlpack, errors, words   what callers give: checks, views of arrays, messages
    files, layer_format, typing           files, layers as text, types for type checkers
    arguments, terminal                   what command lines share: options, errors, exit codes; tables and progress bars
    environment, control_groups           environment variables, and limits of containers
"""
