"""Measurements, each repeated by one command: `python -m benchmarks.experiments.ablations`.

`speed` compares time, `experiments` trains and compares models, `results` keeps what they found,
which chapters print (its README says what each file holds), and `runs` is what programs share.
"""
