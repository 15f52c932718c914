"""The commands of specviz/__main__.py, a file each: its docstring is the help, add_arguments() and run() the rest."""
