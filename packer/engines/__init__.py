"""Engines, which run the tasks of a stage in threads, processes, ranks or on a Ray cluster, and checkpoints.

engine.py       `Engine`, which runs the tasks of a stage in threads of this process
processes.py    `Processes`, which runs them in processes of this machine
ranks.py        `Ranks`, which divides them among processes that share a file system or a bucket
ray_engine.py   `RayEngine`, which runs them on a Ray cluster
checkpoints.py  `Checkpoints`, the stored results of finished tasks
"""
