"""AMD's ladder over KFD: from the topology to kernels, faults and instruction vectors."""
