"""What lets a job go on when workers are lost or come: checkpoints, generations, recovery."""
