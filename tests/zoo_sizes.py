"""The models of the zoo at sizes that a test can run."""

# The first few differ in their operators; the last takes longest.
SMALL = {
    "mlp": "mlp:batch=8,inputs=12,hidden=16",
    "gpt": "gpt:layers=2,hidden=16,heads=4,batch=8,sequence=6,vocabulary=50,dropout=0.1",
    "resnet18-cifar": "resnet18-cifar:batch=8,side=8,width=4",
    "mixtral": "mixtral:layers=2,hidden=16,heads=4,kv_heads=2,inner=24,batch=8,sequence=8,"
    "vocabulary=50",
    "dlrm": "dlrm:batch=8,hidden=4,dense=5,tables=3,rows=20,width=16",
    "unet": "unet:batch=8,side=8,width=2,depth=2,classes=3",
    "llama": "llama:layers=2,hidden=16,heads=4,kv_heads=2,inner=24,batch=8,sequence=6,"
    "vocabulary=50",
    "lenet5": "lenet5:batch=8,side=20",
    "bert": "bert:layers=2,hidden=16,heads=4,batch=8,sequence=6,vocabulary=50",
    "vit": "vit:layers=2,hidden=16,heads=4,batch=8,side=8,patch=4,classes=10",
    "wide_deep": "wide_deep:batch=8,buckets=50,fields=3,hidden=4,width=16",
    "two_matmul": "two_matmul:batch=8,inputs=8,hidden=12,outputs=6",
    "feature_hash": "feature_hash:batch=8,buckets=20,fields=3,hidden=4,width=16",
    "vgg16": "vgg16:batch=8,side=32,width=2,hidden=12,classes=10",
    "resnet50": "resnet50:batch=8,side=32,width=2,classes=12",
}
