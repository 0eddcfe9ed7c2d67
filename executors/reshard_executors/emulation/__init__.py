"""A cluster on one Linux machine: a network namespace per GPU, with a NIC and an NVLink port of set rates.

``cluster`` runs plans on it, ``namespaces`` says how it is wired, ``guardian`` makes it and takes it down.
"""
