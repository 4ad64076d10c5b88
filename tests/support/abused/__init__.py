"""Every loader and parser, given mutants of its files in processes that are limited in time, memory and reach."""
