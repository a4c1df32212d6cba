import os

print(
    os.listdir("/dev/vfio") if os.path.exists("/dev/vfio") else "no vfio",
    os.listdir("/sys/bus/pci/devices"),
)
