"""What ranks saved, for ranks of another number and for whoever wants the model whole.

May enter: files of shards and how they are cut. It imports neither verl nor Ray: an export needs none of them.
"""
