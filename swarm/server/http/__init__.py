"""HTTP: the table of operations, routes, limits and errors. What a route does is done by the packages below."""
