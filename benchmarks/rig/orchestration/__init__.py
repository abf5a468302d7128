"""What orchestration costs: installations of many studies and studies of many runs, written without training any."""
