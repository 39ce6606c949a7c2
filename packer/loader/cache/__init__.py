"""Shards in a cache folder on the node's disk, which all processes of the node share.

They are those of a dataset in object storage, or those of an index whose source is there. There is no server: processes
agree by locks on files, which the system releases when a process ends.

    cached_dataset.py    a dataset that is read through the cache: opens its shards, and fetches those that follow
    shard_cache.py       the shards of a generation: each is fetched by one process, while others wait
    cache_space.py       how much shards may take, which are evicted for others, and the files in the folder
    shard_providers.py   what fetches shards: the protocol, and the provider that downloads
"""
