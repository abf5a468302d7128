"""One module per migration, in order.

May enter: migrations, none of which changes once it is released, and which import nothing of the project. To add one: a
module with the next `revision` and the last one as `down_revision`, and the same change in
`swarm/store/tables/schema.py`.
"""
