"""What a trading session looks like, by the numbers: captures as Spark tables, and the job."""
