"""The Docker sandbox: containers that outlive their controller and can harm nothing."""
