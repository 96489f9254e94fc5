"""``edgepfl aggregator``: the server's mathematics in several processes, each of which has some columns of the model.

``job`` says what coordinator and aggregators tell each other, ``shards`` who has which columns, ``crew`` lets
the processes talk to each other over a ``line``, found by a ``meeting``, ``member`` is the work of one of them, and
``service`` feeds it.
"""
